"""`python -m archsim`."""

from archsim.cli import app

if __name__ == "__main__":
    app(prog_name="archsim")
