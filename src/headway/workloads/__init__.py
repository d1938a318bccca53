"""Where jobs come from: the frozen generators, the trace readers and the job-file schema."""
