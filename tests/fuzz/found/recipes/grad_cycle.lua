-- tensors that are gradients of themselves or of each other outlive nobody
--! none plain 0
--- program
try(function() m = gb.tensor({ true, false, true, true }) m.grad = m end)
try(function() x, y = gb.rand(4, 4), gb.rand(4, 4) x.grad = y y.grad = x end)
