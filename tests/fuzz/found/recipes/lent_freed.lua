-- a tensor that a host function was lent is freed by the recipe that it calls
--! none plain 0
--- program
try(function() x = gb.rand(4, 4) end)
try(function() lent(x, function() close(x) end) end)
