import os; os.environ["OTHER"] = "ran"
