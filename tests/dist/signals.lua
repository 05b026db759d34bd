-- signals.lua FOLDER - a Trainer that saves in FOLDER and goes on from there. Each rank writes its process's number to
-- FOLDER/RANK, and prints the step of each save; rank 0 prints a digest of the weights in the end.

local gb = require "gibbous"
local nn, data, digest = gb.nn, gb.data, dofile "tests/dist/digest.lua"
local folder = arg[1]
gb.manual_seed(3)
local model = nn.Sequential(nn.Linear(8, 16), nn.ReLU(), nn.Dropout(0.3), nn.Linear(16, 4))
local loader = data.DataLoader(data.TensorDataset(gb.randn(100, 8), gb.randint(0, 4, { 100 })),
  { batch_size = 20, shuffle = true })
local trainer = gb.Trainer { model = model, optimizer = { "AdamW", lr = 0.01 }, loss = nn.functional.cross_entropy,
  precision = "16-mixed", device = "cpu", epochs = 8, progress = false, shards = 8, resume = true,
  checkpoint = { folder .. "/files", every_steps = 1000, last = false }, on = {
    start = function(t)
      local file <close> = assert(io.open(folder .. "/" .. gb.dist.rank(), "w"))
      file:write(assert(io.open("/proc/self/stat")):read("a"):match("^%d+"), "\n")
      if t.step > 0 then print("goes on after step " .. t.step) end
    end,
    step = function() os.execute("sleep 0.03") end,
    save = function(t) print(("rank %d saved at step %d"):format(gb.dist.rank(), t.step)) io.stdout:flush() end } }
trainer:fit(loader)
if gb.dist.rank() == 0 then
  print(("digest %s after %d steps"):format(digest(model), trainer.step))
end
