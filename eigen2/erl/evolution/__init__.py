"""Evolution of the population: a list of operators."""

from eigen2.erl.evolution.operator import AgentRows as AgentRows
from eigen2.erl.evolution.operator import EvolutionContext as EvolutionContext
from eigen2.erl.evolution.operator import Operator as Operator
from eigen2.erl.evolution.operator import Parents as Parents
from eigen2.erl.evolution.operator import Ranking as Ranking
from eigen2.erl.evolution.operators import Elitism as Elitism
from eigen2.erl.evolution.operators import FineMutation as FineMutation
from eigen2.erl.evolution.operators import Injection as Injection
from eigen2.erl.evolution.operators import MagnitudeMutation as MagnitudeMutation
from eigen2.erl.evolution.operators import TournamentCrossover as TournamentCrossover
