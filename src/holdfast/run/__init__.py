"""What commands do: sessions, studies, sweeps, and the command line itself."""
