package engine_test

import (
	"context"
	"fmt"
	"io"
	"log"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"
	"github.com/opencontainers/runtime-spec/specs-go"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/enginetest"
)

// A face runs one container in a sandbox, as its owner. The node is a fake with a function as the
// program "greet".
func ExampleClient() {
	tb, done := enginetest.ExampleTB()
	defer done()
	node := enginetest.New(tb)
	node.AddImage("busybox:1", ocispec.ImageConfig{}, nil)
	node.Supervisor.Program("greet", func(p *enginetest.Process) int {
		_, _ = io.WriteString(p.Stdout(), "hello "+p.Args[1])
		return 3
	})

	ctx := context.Background()
	client := node.As(core.OwnerCLI)
	image, err := client.Images.Get(ctx, "busybox:1")
	if err != nil {
		log.Fatal(err)
	}
	sandbox, err := client.CreateSandbox(ctx, core.SandboxConfig{Key: "greeting"})
	if err != nil {
		log.Fatal(err)
	}
	container, err := client.CreateContainer(ctx, core.ContainerConfig{
		Key: "greeting", Sandbox: sandbox.ID, Root: core.Root{Image: image.ID},
		Spec: func(context.Context, core.Rootfs) (*specs.Spec, []byte, error) {
			return &specs.Spec{Process: &specs.Process{Args: []string{"greet", "world"}, Cwd: "/"}}, nil, nil
		},
	})
	if err != nil {
		log.Fatal(err)
	}
	main := core.Ref{Container: container.ID}
	streams, err := client.Streams(ctx, main, core.StreamOptions{Stdout: true})
	if err != nil {
		log.Fatal(err)
	}
	if err := client.StartContainer(ctx, container.ID); err != nil {
		log.Fatal(err)
	}
	output, err := io.ReadAll(streams.Stdout)
	if err != nil {
		log.Fatal(err)
	}
	autopsy, err := client.Wait(ctx, main)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s: %s\n", output, autopsy.Verdict)
	if err := client.RemoveSandbox(ctx, sandbox.ID, engine.RemoveOptions{Force: true}); err != nil {
		log.Fatal(err)
	}
	// Output:
	// hello world: exited with code 3
}

// A face follows the events of its objects. A client that comes later, or comes back, gives the
// number of the last event that it has seen.
func ExampleClient_Events() {
	tb, done := enginetest.ExampleTB()
	defer done()
	node := enginetest.New(tb)
	image := node.AddImage("busybox:1", ocispec.ImageConfig{}, nil)
	container := node.Running(node.Pod(core.OwnerNomad, "task"), "task", image, "sleep")
	node.Supervisor.Exit(core.Ref{Container: container.ID}, 0)

	ctx, stop := context.WithCancel(context.Background())
	defer stop()
	for event, err := range node.As(core.OwnerNomad).Events(ctx, 0, core.Filter{}) {
		if err != nil {
			log.Fatal(err)
		}
		fmt.Println(event.Seq, event.Kind)
		if event.Kind == core.EventContainerExited {
			break
		}
	}
	// Output:
	// 2 sandbox.creating
	// 3 sandbox.ready
	// 4 container.creating
	// 5 container.created
	// 6 container.started
	// 7 container.exited
}
