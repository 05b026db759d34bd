-- mobilenet.lua - torchvision's MobileNetV3: inverted residuals, depthwise convolutions, squeeze and excite, hardswish.

local gb = require "gibbous"
local F = gb.nn.functional
local common = dofile("tests/models/common.lua")
local EPS = 1e-3
-- Channels in, kernel, channels within and out, squeeze and excite, activation, stride.
local ROWS = {
  { 8, 3, 8, 8, true, F.relu, 2 }, { 8, 3, 24, 12, false, F.relu, 2 }, { 12, 5, 32, 12, true, F.hardswish, 1 },
}

-- A convolution that keeps the size but for its stride, its batch norm, and an activation.
local function conv(w, name, x, activation, kernel, stride, groups)
  local y = common.conv(w, name .. ".0", x, { stride = stride, padding = kernel // 2, groups = groups })
  y = common.batch_norm(w, name .. ".1", y, EPS)
  return activation and activation(y) or y
end

-- Each channel times a share of itself, which all channels' means decide.
local function squeeze(w, name, x)
  local s = F.relu(common.conv(w, name .. ".fc1", F.adaptive_avg_pool2d(x, 1)))
  return F.hardsigmoid(common.conv(w, name .. ".fc2", s)) * x
end

-- The logits of inputs.x by the weights w.
return function(w, inputs)
  local x = conv(w, "features.0", inputs.x, F.hardswish, 3, 2)
  for i, row in ipairs(ROWS) do
    local from, kernel, within, to, squeezed, activation, stride = table.unpack(row)
    local part, y = 0, x
    local function name()
      part = part + 1
      return ("features.%d.block.%d"):format(i, part - 1)
    end
    if within ~= from then y = conv(w, name(), y, activation, 1, 1) end
    y = conv(w, name(), y, activation, kernel, stride, within)
    if squeezed then y = squeeze(w, name(), y) end
    y = conv(w, name(), y, nil, 1, 1)
    x = from == to and stride == 1 and y + x or y
  end
  x = conv(w, ("features.%d"):format(#ROWS + 1), x, F.hardswish, 1, 1)
  x = F.hardswish(common.linear(w, "classifier.0", F.adaptive_avg_pool2d(x, 1):flatten(2)))
  return common.linear(w, "classifier.3", x)
end
