-- a weak list of tensors loses them between the reading and the op
--! none plain 0
--- program
try(function() for k = 0, 9 do pcall(gb.stack, W('v' .. k, 2, { gb.ones({ 2, 3 }), gb.ones({ 2, 3 }) }), 3) end end)
