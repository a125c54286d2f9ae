from support.outside import outside_of_the_repository

__all__ = ["outside_of_the_repository"]
