-- functions.lua - functions of gb that are made of its ops: windows of signals.
--
-- Windows are computed in float64 and rounded once, whatever their dtype.

local gb, native = ...
local define, fail = native.define, native.fail -- fail raises with the recipe's line
local format, pi = string.format, math.pi

-- {==== windows ====

-- What a window of more than one sample is made of: places 0 .. 1, as float64, a whole period or up to its last sample.
local function window(name, formula)
  return function(n, periodic, first, second, options)
    if n < 0 then fail(format("%s: window_length is %d; it is 0 or more", name, n)) end
    local steps = periodic and n or n - 1
    local made = { dtype = "float64", device = options.device }
    local y = n == 1 and gb.ones(1, made) or formula(gb.arange(0, n, 1, made) / steps, first, second)
    y = y:to(options.dtype or gb.get_default_dtype())
    if options.requires_grad then y:requires_grad_() end
    return y
  end
end

-- a - b cos(2 pi t).
local function raised(t, a, b) return (t * (2 * pi)):cos() * -b + a end

local hann = window("hann_window", function(t) return raised(t, 0.5, 0.5) end)
local hamming = window("hamming_window", raised)
local blackman = window("blackman_window", function(t) return raised(t, 0.42, 0.5) + (t * (4 * pi)):cos() * 0.08 end)
local bartlett = window("bartlett_window", function(t) return 1 - (t * 2 - 1):abs() end)
local kaiser = window("kaiser_window", function(t, beta)
  local inside = (1 - (t * 2 - 1):square()):clamp(0)
  return (inside:sqrt() * beta):i0() / gb.tensor(beta, { dtype = "float64", device = t.device }):i0()
end)

gb.hann_window = define("gb.hann_window(window_length: int, periodic: bool = true; dtype?: dtype, device?: device, \z
  requires_grad: bool = false) -> tensor: 0.5 - 0.5 cos(2 pi i / n): a window for stft. periodic: n is the length, so \z
  that windows follow one another; else 1 less, and the window is symmetric. Example: \z
  local y = gb.randn(1000):stft(64, 16, 64, gb.hann_window(64))", "strict",
  function(n, periodic, options) return hann(n, periodic, nil, nil, options) end)

gb.hamming_window = define("gb.hamming_window(window_length: int, periodic: bool = true, alpha: number = 0.54, \z
  beta: number = 0.46; dtype?: dtype, device?: device, requires_grad: bool = false) -> tensor: \z
  alpha - beta cos(2 pi i / n), n as for hann_window. Example: local window = gb.hamming_window(64)", "strict", hamming)

gb.blackman_window = define("gb.blackman_window(window_length: int, periodic: bool = true; dtype?: dtype, \z
  device?: device, requires_grad: bool = false) -> tensor: 0.42 - 0.5 cos(2 pi i / n) + 0.08 cos(4 pi i / n), n as \z
  for hann_window. Example: local window = gb.blackman_window(64)", "strict",
  function(n, periodic, options) return blackman(n, periodic, nil, nil, options) end)

gb.bartlett_window = define("gb.bartlett_window(window_length: int, periodic: bool = true; dtype?: dtype, \z
  device?: device, requires_grad: bool = false) -> tensor: From 0 up to 1 in the middle and down again, in straight \z
  lines. Example: local window = gb.bartlett_window(64)", "strict",
  function(n, periodic, options) return bartlett(n, periodic, nil, nil, options) end)

gb.kaiser_window = define("gb.kaiser_window(window_length: int, periodic: bool = true, beta: number = 12; \z
  dtype?: dtype, device?: device, requires_grad: bool = false) -> tensor: Kaiser's window: i0(beta sqrt(1 - t^2)) / \z
  i0(beta), t from -1 to 1. Example: local window = gb.kaiser_window(64)", "strict",
  function(n, periodic, beta, options) return kaiser(n, periodic, beta, nil, options) end)

-- ====}
