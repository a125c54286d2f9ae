from support.outside import outside_of_the_repository
from support.projects import shared_groups

__all__ = ["outside_of_the_repository", "shared_groups"]
