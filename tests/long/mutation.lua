-- mutation.lua - arithmetic stands once: a constant changed in its one place fails every test of what is computed with
-- it, on both backends.
--
--   gibbous tests/long/mutation.lua       skipped (exit status 77) where cmake, ninja or a C++ compiler is missing
--
-- The sources are copied, the constant is changed there, and the emulated device is built beside the CPU's kernels;
-- then the golden tests run on each device. Cases that have the constant must fail, and no other may.

local old, new = "0.044715", "0.045715" -- of the approximate gelu
-- The op, the epilogue of a product, the chain.
local affected = { ["gelu (tanh)"] = true, ["linear (gelu_tanh)"] = true, ["mlp (gelu_tanh)"] = true }

local function runs(command) return (os.execute("{ " .. command .. "; } >/dev/null 2>&1")) end

for _, tool in ipairs { "cmake", "ninja", "c++" } do
  if not runs(tool .. " --version") then
    print("skipped: " .. tool .. " is not here")
    os.exit(77)
  end
end

local folder = os.tmpname()
os.remove(folder)
local copy = ("mkdir %s && tar -cf - --exclude='./build*' --exclude=./.git . | tar -xf - -C %s"):format(folder, folder)
assert(runs(copy), "the sources cannot be copied")

-- The file that has the constant; more than one is a failure.
local function the_place()
  local files = {}
  local list = io.popen(("grep -rlF '%s' %s/runtime %s/cuda"):format(old, folder, folder))
  for file in list:lines() do files[#files + 1] = file end
  list:close()
  local text = #files == 1 and io.open(files[1]):read("a") or ""
  local _, count = text:gsub("%f[%d]" .. old:gsub("%.", "%%."), "")
  if count ~= 1 then error(("%s stands in %d files: %s"):format(old, #files, table.concat(files, ", "))) end
  return files[1], text
end

-- Put the new constant into its place, and build.
local function mutate()
  local file, text = the_place()
  local f = assert(io.open(file, "w"))
  f:write((text:gsub(old:gsub("%.", "%%."), new)))
  f:close()
  local build = ("cd %s && cmake --preset emulate -G Ninja -DGIBBOUS_LEVELS=OFF -DGIBBOUS_TESTS=OFF && "
    .. "cmake --build build-emulate --target gibbous gibbous_cuda"):format(folder)
  if not runs(build) then error("does not build: " .. build) end
end

-- The golden cases that fail on a device, by name.
local function failing(device)
  local cases, whole = {}, false
  local test = io.popen(("cd %s && GIBBOUS_PLUGINS=build-emulate/cuda_on_cpu build-emulate/gibbous --device %s "
    .. "tests/lua/test_golden_ops.lua 2>&1"):format(folder, device))
  for line in test:lines() do
    local case = line:match("^FAILED%s+[^:]+: (.+)$")
    if case then cases[case] = true end
    whole = whole or line:match("^%d+ passed, %d+ failed$") ~= nil
  end
  test:close()
  if not whole then error("the golden tests did not run to their end on " .. device) end
  return cases
end

local function check()
  mutate()
  local wrong = {}
  for _, device in ipairs { "cpu", "cuda" } do
    local cases = failing(device)
    for case in pairs(affected) do
      if not cases[case] then wrong[#wrong + 1] = case .. " passes on " .. device end
    end
    for case in pairs(cases) do
      if not affected[case] then wrong[#wrong + 1] = case .. " fails on " .. device end
    end
  end
  if #wrong > 0 then error(("with %s for %s: %s"):format(new, old, table.concat(wrong, "; "))) end
end

local ok, why = pcall(check)
runs("rm -rf " .. folder)
if not ok then error(why, 0) end
print(("%s for %s fails the op, the epilogue and the chain on both devices"):format(new, old))
