module stagepost.test/interop/gouroboros_current

go 1.25.7

require (
	github.com/blinklabs-io/gouroboros v0.199.0
	stagepost.test/interop/gouroboros_shared v0.0.0
)

require (
	github.com/fxamacker/cbor/v2 v2.9.3 // indirect
	github.com/jinzhu/copier v0.4.0 // indirect
	github.com/x448/float16 v0.8.4 // indirect
	golang.org/x/crypto v0.55.0 // indirect
	golang.org/x/sys v0.47.0 // indirect
)

replace stagepost.test/interop/gouroboros_shared => ../gouroboros_shared
