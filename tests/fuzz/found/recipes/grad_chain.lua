-- gradients of gradients, let go at once
--! files plain 0
--- program
try(function() c = chain(gb.rand(2), 40000, function(c) local o = gb.rand(2);
  local before = c c = o o.grad = before return c end) end)
try(function() c = nil collectgarbage() end)
