from support.projects import shared_groups

__all__ = ["shared_groups"]
