"""One file per command. Commands import torch and the engine only when they run, so that --help is fast."""
