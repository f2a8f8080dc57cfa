__shortversion__ = "0.20.0"
__version__ = "0.20.0+stand-in"
