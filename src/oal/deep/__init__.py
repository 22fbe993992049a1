"""Deep online apprenticeship learning: Algorithm 1 over exchangeable policy and cost players."""
