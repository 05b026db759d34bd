-- a weak list of parameters loses them while they are clipped
--! strict incremental 0
--- program
try(function() w = gb.rand(4, 4, { requires_grad = true }) end)
try(function() for k = 0, 9 do
  pcall(gb.nn.utils.clip_grad_norm_, W('kv' .. k, 2, { w, gb.rand(4, 4, { requires_grad = true }) }), 0.5, 1) end end)
