-- a weak list of inputs loses them while gb.grad runs
--! files plain 0
--- program
try(function() n, m = gb.tensor(3), gb.tensor({ true, false, true, true }) end)
try(function() for k = 0, 9 do pcall(gb.grad, { n }, W('kv' .. k, 1, { (m * 2) }), {}) end end)
