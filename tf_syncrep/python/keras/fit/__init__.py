"""fit, evaluate and predict under ParameterServerStrategy."""
