"""The compiled arithmetic of the fits. Numba is loaded when the first fit is made: nothing outside imports these at its top."""
