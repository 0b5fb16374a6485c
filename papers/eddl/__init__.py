"""EDDL (SEC'21) reproduced on Shoal: every figure of its evaluation, by one command. See README.md."""
