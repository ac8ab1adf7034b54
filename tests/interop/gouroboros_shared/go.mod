module stagepost.test/interop/gouroboros_shared

go 1.25.7

require github.com/blinklabs-io/gouroboros v0.166.1
