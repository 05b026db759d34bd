-- lstm.lua - a language model of two layers of LSTM, as in PyTorch's examples.

local gb = require "gibbous"
local nn, F = gb.nn, gb.nn.functional
local common = dofile("tests/models/common.lua")
local WIDTH, HIDDEN, LAYERS = 20, 24, 2

-- The logits of inputs.ids [batch, time] by the weights w.
return function(w, inputs)
  local rnn = nn.LSTM(WIDTH, HIDDEN, { num_layers = LAYERS, batch_first = true })
  for layer = 0, LAYERS - 1 do
    for _, kind in ipairs { "weight_ih_l", "weight_hh_l", "bias_ih_l", "bias_hh_l" } do
      local name = kind .. layer
      rnn[name] = nn.Parameter(w["rnn." .. name])
    end
  end
  return common.linear(w, "decoder", (rnn(F.embedding(inputs.ids, w["encoder.weight"]))))
end
