"""Adam that refuses the state of other parameters when it resumes."""

from typing import Any

import torch

from eigen2.core.saved_run import altered_as_user_error


class Adam(torch.optim.Adam):
    """Adam whose saved state holds moments only; learning rates and all else come from the settings."""

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Load the moments, in place if there are some; raises UserError for those of other parameters."""
        held = {parameter: dict(state) for parameter, state in self.state.items()}
        with altered_as_user_error():
            super().load_state_dict({**state_dict, "param_groups": self.state_dict()["param_groups"]})
            for parameter, state in self.state.items():
                shapes = {name: moment.shape for name, moment in state.items()}
                if state and shapes != {"step": (), "exp_avg": parameter.shape, "exp_avg_sq": parameter.shape}:
                    raise ValueError(f"moments of {shapes}")
        for parameter, moments in held.items():
            for name, moment in moments.items():
                loaded = self.state[parameter].get(name)
                if loaded is not None:
                    self.state[parameter][name] = moment.copy_(loaded)
