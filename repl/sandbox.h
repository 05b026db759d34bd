/* sandbox.h - --sandbox: statements and a script that may only compute. */
#ifndef GB_REPL_SANDBOX_H
#define GB_REPL_SANDBOX_H

#include "limits.h"
#include "script.h"

/* Run what the command line names. */
script_end sandbox_run(const options *o, const limits *l);

#endif
