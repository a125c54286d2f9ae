"""The name of `launcher.resume.mlflow_model` that models in MLflow have stored before."""

from launcher.resume.mlflow_model import _load_pyfunc as _load_pyfunc
from launcher.resume.trained_model import load_model as load_model
