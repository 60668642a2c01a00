"""SQLAlchemy's own test suite for dialects, run by ``test_sqlalchemy_suite.py``."""
