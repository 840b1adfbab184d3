"""The command line: what people type. `main` gathers the commands; `serve` is the quick path that avoids typer."""
