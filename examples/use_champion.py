"""What an exported champion would do on new days, without Lightning and without the run it came from.

python -m eigen2.cli export --ckpt_path best --output champion-export
python examples/use_champion.py champion-export new.parquet
"""

import sys

from eigen2.errors import UserError
from eigen2.market.serving.trader import Trader

if len(sys.argv) != 3:
    sys.exit(f"usage: python {sys.argv[0]} EXPORTED_FOLDER PRICES")
folder, prices = sys.argv[1:]
try:
    trader = Trader.load(folder)
    # a row for each order, position and close, from the first new day on
    orders = trader.orders(prices)
except UserError as error:
    print(f"error: {error}", file=sys.stderr)
    sys.exit(2)

latest = orders[orders["date"] == orders["date"].max()]
print(f"{len(trader.investable)} tickers, its fit has seen days up to {trader.last_seen}")
print(latest[["date", "ticker", "action", "size", "target_pct", "reason"]].to_string(index=False))
