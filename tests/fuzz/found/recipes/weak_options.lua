-- weak options lose a tensor between the reading and the op
--! strict incremental 0
--- program
try(function() y = gb.ones({ 3, 4 }) end)
try(function() for k = 0, 9 do
  F.binary_cross_entropy(y, y, W('v' .. k, 1, { reduction = 'sum', weight = gb.rand(4) })) end end)
