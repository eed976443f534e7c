"""`python -m sees_torch` is the `sees` command, for torchrun."""

from sees_torch.cli import main

if __name__ == "__main__":
    raise SystemExit(main())
