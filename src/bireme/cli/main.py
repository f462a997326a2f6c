"""The entry point: imports the file of a command, runs it and prints errors.

Commands are imported when they are needed, so `bireme --help` stays fast.
"""

from __future__ import annotations

import contextlib
import gc
import importlib
import sys
from collections.abc import Iterator
from typing import Any

import click

from bireme import __version__
from bireme.cli.output import print_error
from bireme.core.errors import BiremeError, StorageError, UsageError

COMMANDS: dict[str, tuple[str, str]] = {
    "demo": ("bireme.cli.jobs.demo", "Train the quick-start job on this machine, from nothing to a model."),
    "train": ("bireme.cli.jobs.train", "Run a job here, in the foreground."),
    "resume": ("bireme.cli.jobs.train", "Resume a job that was stopped or died."),
    "drill": ("bireme.cli.jobs.drill", "Kill, pause and cut on purpose, and see what it costs."),
    "verify": ("bireme.cli.jobs.verify", "Check all that a job has left: snapshots, models and the ledger."),
    "simulate": ("bireme.cli.simulate", "A job at another scale, in virtual time."),
    "submit": ("bireme.cli.jobs.submit", "Run a job on a Kubernetes cluster."),
    "list": ("bireme.cli.jobs.listing", "Jobs on this machine and on the cluster."),
    "status": ("bireme.cli.jobs.listing", "How a job is doing."),
    "why": ("bireme.cli.jobs.control", "Why a job does not run, and what to do about it."),
    "logs": ("bireme.cli.jobs.listing", "The logs of a job's processes."),
    "cancel": ("bireme.cli.jobs.control", "Stop a job cleanly."),
    "fetch": ("bireme.cli.jobs.control", "Bring a job's models and logs from the cluster."),
    "delete": ("bireme.cli.jobs.control", "Take a job from the cluster."),
    "data": ("bireme.cli.data", "Split and check training data, and bring it to a cluster."),
    "model": ("bireme.cli.model", "Look into, hash, compare and export saved models."),
    "predict": ("bireme.cli.model", "Use a model on new samples."),
    "test": ("bireme.cli.model", "Measure a model on test data."),
    "cluster": ("bireme.cli.aws.commands", "Make a Kubernetes cluster on AWS, and take it down again."),
    "image": ("bireme.cli.image", "Build, push and load container images, without docker."),
    "doctor": ("bireme.cli.doctor", "What is missing on this machine, and how to get it."),
    "pserver": ("bireme.cli.processes", "Start one parameter server by hand."),
    "trainer": ("bireme.cli.processes", "Start one trainer by hand."),
    "node": ("bireme.cli.processes", ""),
    "fork-server": ("bireme.cli.processes", ""),
    "volume": ("bireme.cli.volume", ""),
}

_OTHER_NAMES = {
    "--version": "version",
    "--help": "help",
    "train": "run start fit",
    "cancel": "stop kill",
    "list": "ls ps jobs",
    "status --watch": "watch top",
    "logs --follow": "tail",
    "logs": "log",
    "status --all": "plot metrics",
    "test": "eval evaluate",
    "predict": "infer",
    "demo --prepare DIR": "init new",
}
_INNER_NAMES = {"data": "split check push", "model": "show hash diff export", "cluster": "up down"}
MEANT = {name: command for command, names in _OTHER_NAMES.items() for name in names.split()}
"""Names of other tools, and of inner commands without their group, with the command that is probably meant."""
MEANT |= {name: f"{group} {name}" for group, names in _INNER_NAMES.items() for name in names.split()}


@contextlib.contextmanager
def importing() -> Iterator[None]:
    """Import without garbage collections: a tenth of the time, as they walk all modules so far and find nothing."""
    gc.disable()
    try:
        yield
    finally:
        gc.freeze()
        gc.enable()


class Front(click.Group):
    """A group that has its commands' names and one-line helps without importing them."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, _ = COMMANDS[cmd_name]
        attribute = {"list": "list_", "fork-server": "fork_server"}.get(cmd_name, cmd_name)
        with importing():
            command: click.Command = getattr(importlib.import_module(module), attribute)
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in COMMANDS and not args[0].startswith("-"):
            raise click.UsageError(f"There is no command `{args[0]}`. {_hint(args[0])}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, text) for name, (_, text) in COMMANDS.items() if text])


def _hint(name: str) -> str:
    import difflib

    if name in MEANT:
        return f"Did you mean `bireme {MEANT[name]}`?"
    close = difflib.get_close_matches(name, [each for each, (_, text) in COMMANDS.items() if text], n=1)
    return f"Did you mean `{close[0]}`?" if close else "`bireme --help` lists the commands."


def _about_option(error: click.NoSuchOption) -> str:
    """What an unknown option may mean: of commands that take flags for keys of job.yaml, by the names of those."""
    from bireme.spec.job import KEY_OF, MEANT, JobFile

    flags = {flag for each in (error.ctx.command.params if error.ctx else ()) for flag in each.opts}
    name = error.option_name.lstrip("-").replace("-", "_")
    key = KEY_OF.get(name, name)
    flag = "--" + key.rpartition(".")[2].replace("_", "-")
    if not flags & {"--trainers", "--passes"}:
        return error.format_message()
    if flag in flags:
        hint = f"Did you mean `{flag}`?"
    elif name in KEY_OF or key in JobFile.__struct_fields__:
        hint = f"`{key}` is a key of job.yaml."
    elif name in MEANT:
        hint = f"I{MEANT[name][1:]}"
    else:
        return error.format_message()
    return f"There is no option `{error.option_name}`. {hint}"


@click.group(
    cls=Front,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="First time here? Run `bireme demo`.",
)
@click.version_option(__version__, prog_name="bireme")
@click.option("--debug", is_flag=True, help="Show Python tracebacks of errors.")
def bireme(debug: bool) -> None:
    """Train with parameter servers: the same job, the same bits, wherever it runs."""


def main(arguments: list[str] | None = None) -> None:
    argv = sys.argv[1:] if arguments is None else arguments
    try:
        code: Any = bireme.main(argv, prog_name="bireme", standalone_mode=False)
        raise SystemExit(code if isinstance(code, int) else 0)
    except click.exceptions.NoArgsIsHelpError as e:
        click.echo(e.format_message())
        raise SystemExit(0) from None
    except click.ClickException as e:
        text = _about_option(e) if isinstance(e, click.NoSuchOption) else e.format_message()
        print_error(UsageError(text, fix=_usage_of(e)), as_json="--json" in argv)
        raise SystemExit(e.exit_code) from None
    except click.Abort:
        raise SystemExit(130) from None
    except BrokenPipeError:
        sys.stderr.close()  # else Python would complain about the pipe once more at its exit
        raise SystemExit(141) from None
    except (BiremeError, OSError) as e:
        if "--debug" in argv:
            raise
        system = e if isinstance(e, BiremeError) else StorageError(f"{e.filename or 'the system'}: {e.strerror or e}")
        print_error(system, as_json="--json" in argv)
        raise SystemExit(system.exit_code) from None


def _usage_of(error: click.ClickException) -> str:
    context = getattr(error, "ctx", None)
    return f"`{context.command_path} --help` shows how it is used" if context else "`bireme --help` lists the commands"
