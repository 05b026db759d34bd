-- whisper.lua - transformers' WhisperEncoder, and a head: two convolutions over time, fixed positions, norms first.

local gb = require "gibbous"
local F = gb.nn.functional
local common = dofile("tests/models/common.lua")
local linear, layer_norm = common.linear, common.layer_norm
local HEADS, LAYERS, EPS = 3, 2, 1e-5

-- A convolution over time and gelu: [batch, channels, time] as an image one row high.
local function conv(w, name, x, stride)
  local weight = w[name .. ".weight"]:unsqueeze(3)
  local options = { stride = { 1, stride }, padding = { 0, 1 } }
  return F.gelu(F.conv2d(x:unsqueeze(3), weight, w[name .. ".bias"], options):squeeze(3))
end

-- The logits of inputs.x [batch, bins, time] by the weights w.
return function(w, inputs)
  local x = conv(w, "encoder.conv2", conv(w, "encoder.conv1", inputs.x, 1), 2)
  x = x:transpose(2, 3) + w["encoder.embed_positions.weight"]
  for i = 0, LAYERS - 1 do
    local block = ("encoder.layers.%d."):format(i)
    local y = layer_norm(w, block .. "self_attn_layer_norm", x, EPS)
    local q, k = linear(w, block .. "self_attn.q_proj", y), linear(w, block .. "self_attn.k_proj", y)
    y = common.attention(q, k, linear(w, block .. "self_attn.v_proj", y), HEADS)
    x = x + linear(w, block .. "self_attn.out_proj", y)
    y = layer_norm(w, block .. "final_layer_norm", x, EPS)
    x = x + linear(w, block .. "fc2", F.gelu(linear(w, block .. "fc1", y)))
  end
  return linear(w, "head", layer_norm(w, "encoder.layer_norm", x, EPS))
end
