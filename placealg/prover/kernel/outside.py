"""What the kernel's language cannot express."""


class Outside(Exception):
    """The kernel's language cannot express a program: the event (or "" for a part of the reference), and the reason."""

    def __init__(self, event: str, reason: str) -> None:
        super().__init__(event, reason)
        self.event, self.reason = event, reason

    def __str__(self) -> str:
        return f"{self.event}: {self.reason}" if self.event else self.reason
