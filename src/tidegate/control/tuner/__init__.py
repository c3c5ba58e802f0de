"""The tuner: searches settings of an engine that need a restart, for the most goodput. Its core is pure: how settings are
measured is handed in (`Measure`), and everything random comes from a generator that is handed in.
"""
