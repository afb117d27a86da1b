module github.com/longshore/longshore/test/e2e/nomad/csi

go 1.26.8

require (
	github.com/container-storage-interface/spec v1.13.0
	golang.org/x/sys v0.50.0
	google.golang.org/grpc v1.85.0
)

require (
	golang.org/x/net v0.62.0 // indirect
	golang.org/x/text v0.43.0 // indirect
	google.golang.org/genproto/googleapis/rpc v0.0.0-20260817212433-ac3dfec99bb1 // indirect
	google.golang.org/protobuf v1.36.12 // indirect
)
