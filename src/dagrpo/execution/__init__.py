"""How one stage is executed: what it declares, what its code is, its arguments, devices, retries and errors."""
