package keeper_test

import (
	"context"
	"fmt"
	"io"
	"log"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/engine/enginetest"
	"github.com/longshore/longshore/internal/keeper"
)

// The agent connects to the keeper that runs on the node, or starts one. It needs
// root and the program, so this Example is compiled and not run.
func ExampleNew() {
	ctx := context.Background()
	client, err := keeper.New(ctx, keeper.Options{StateDir: "/run/longshore/keeper", Binary: "/usr/bin/longshore-keeper"})
	if err != nil {
		log.Fatal(err)
	}
	defer func() { _ = client.Close() }() // the keeper's processes continue
	status, err := client.Status(ctx)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Println(status.Processes, "processes")
}

// Exits are offered until they are acknowledged: a taker puts them on record first. The Example
// takes them from the fake that passes the same suite (keepertest) as a Client does.
func ExampleClient_Exits() {
	tb, done := enginetest.ExampleTB()
	defer done()
	fake := enginetest.Fakes(tb).Supervisor
	ctx := context.Background()
	program := func(p *enginetest.Process) int {
		_, _ = io.WriteString(p.Stdout(), "hello")
		return 7
	}
	ref := core.Ref{Container: "c"}
	launched, err := fake.Start(ctx, ref, program, core.IO{}, &core.StreamOptions{Stdout: true})
	if err != nil {
		log.Fatal(err)
	}
	output, err := io.ReadAll(launched.Streams.Stdout)
	if err != nil {
		log.Fatal(err)
	}
	fmt.Printf("%s\n", output)

	var client core.Supervisor = fake
	for range 2 { // as an agent does that dies before it has acknowledged, and the next
		for x, err := range client.Exits(ctx) {
			if err != nil {
				log.Fatal(err) // the keeper is gone: call Exits again
			}
			fmt.Println("exit code", x.Exit.Code)
			break
		}
	}
	if err := client.Ack(ctx, ref); err != nil {
		log.Fatal(err)
	}
	if err := client.Forget(ctx, ref); err != nil {
		log.Fatal(err)
	}
	left, err := client.Processes(ctx)
	fmt.Println(len(left), "processes,", err)
	// Output:
	// hello
	// exit code 7
	// exit code 7
	// 0 processes, <nil>
}
