-- reading the list of losses closes the scaler that scales them
--! strict plain 0
--- program
try(function() effect(1, 3, function() close(scaler) scaler = nil collectgarbage() end) end)
try(function() scaler, y = gb.amp.GradScaler({ init_scale = 2 }), gb.rand(4, 4, { requires_grad = true }) end)
try(function() r1 = scaler:scale(W('index', 1, { y * 2, y * 3 })) end)
