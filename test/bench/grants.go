package main

import (
	"context"
	"encoding/binary"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	ocispec "github.com/opencontainers/image-spec/specs-go/v1"

	runtimeapi "github.com/longshore/longshore/api/cri/v1"
	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/image/imagetest"
	"github.com/longshore/longshore/test/bench/machine"
	"github.com/longshore/longshore/test/bench/server"
)

// The targets for programs that hold only their descriptors.
const (
	nativeRatio   = 1.2  // of the start of an ordinary container
	wasmRatio     = 2.0  // the same, of a module that is compiled
	instanceKB    = 3072 // PSS of a small module's process
	instances     = 500  // at once
	instancesEach = 100  // of a pod
)

// way is a way to start the same: a program that writes a line, and waits.
type way struct {
	label, image, document string
	took                   []time.Duration
}

// ofGrants measures the start of a small program as an ordinary container, as one that holds only its descriptors, and
// as WebAssembly, in turns, in one pod; and the memory of many of the last.
func ofGrants(ctx context.Context, b *bench) error {
	if !b.ours() {
		return nil
	}
	ways, err := grantWays(ctx, b)
	if err != nil {
		return err
	}
	sandbox, err := waitingPod(ctx, b)
	if err != nil {
		return err
	}
	for round := range warmUp + b.pods {
		for i := range ways {
			took, err := startOnce(ctx, b, sandbox, &ways[i])
			if err != nil {
				return fmt.Errorf("%s: %w", ways[i].label, err)
			}
			if round >= warmUp {
				ways[i].took = append(ways[i].took, took)
			}
		}
	}
	if err := b.down(ctx, sandbox); err != nil {
		return err
	}
	for i := range ways {
		b.row("", ways[i].label+": to its first line", ways[i].took)
	}
	plain := ms(middle(ways[0].took))
	b.value("", "granted: times ordinary", ms(middle(ways[1].took))/plain, "(p50; at most %.1f)", nativeRatio)
	b.value("", "wasm: times ordinary", ms(middle(ways[2].took))/plain, "(p50; at most %.1f)", wasmRatio)
	if err := byCrun(ctx, b); err != nil {
		return err
	}
	return manyModules(ctx, b, &ways[2])
}

// grantWays serves the program in its two forms, and has both pulled.
func grantWays(ctx context.Context, b *bench) ([]way, error) {
	images, registry, err := server.ServeMore()
	if err != nil {
		return nil, err
	}
	defer images.Close()
	native := registry.Push("ready", "native", imagetest.Image{Layers: [][]imagetest.File{{{Name: "program", Body: server.ReadyProgram(), Mode: 0o755}}}, Config: ocispec.ImageConfig{Entrypoint: []string{"/program"}}}.Build())
	module := registry.Push("ready", "wasm", imagetest.Wasm{
		Module: readyModule(), LayerType: "application/wasm", ConfigType: "application/vnd.wasm.config.v0+json", Config: map[string]any{"architecture": "wasm", "os": "wasip1"},
	}.Build())
	ways := []way{
		{label: "ordinary", image: native},
		{label: "granted", image: native, document: "{}"},
		{label: "wasm", image: module, document: "{log: !container_log , clock: !clock }"},
	}
	for i, w := range ways[1:] {
		pulled, err := b.client.images.PullImage(ctx, &runtimeapi.PullImageRequest{Image: &runtimeapi.ImageSpec{Image: w.image}})
		if err != nil {
			return nil, fmt.Errorf("pull %s: %w", w.image, err)
		}
		ways[i+1].image = pulled.GetImageRef()
	}
	ways[0].image = ways[1].image
	return ways, nil
}

func waitingPod(ctx context.Context, b *bench) (*pod, error) {
	p, err := b.upWith(ctx, program)
	if err != nil {
		return nil, err
	}
	return p, p.ready(ctx)
}

// startIn starts a container in a pod, and waits for its first line. It returns how long that took.
func startIn(ctx context.Context, b *bench, in *pod, w *way) (*pod, time.Duration, error) {
	name := b.name()
	p := &pod{sandbox: in.sandbox, log: filepath.Join(filepath.Dir(in.log), name+".log")}
	namespaces := &runtimeapi.NamespaceOption{Pid: runtimeapi.NamespaceMode_CONTAINER}
	cfg := &runtimeapi.ContainerConfig{
		Metadata: &runtimeapi.ContainerMetadata{Name: name}, Image: &runtimeapi.ImageSpec{Image: w.image}, LogPath: name + ".log",
		Linux: limited(namespaces, &runtimeapi.SecurityProfile{ProfileType: runtimeapi.SecurityProfile_Unconfined}),
	}
	if w.document != "" {
		cfg.Annotations = map[string]string{core.GrantAnnotation: w.document}
	}
	sandbox := &runtimeapi.PodSandboxConfig{LogDirectory: filepath.Dir(in.log), Linux: &runtimeapi.LinuxPodSandboxConfig{CgroupParent: machine.Pods()}}
	t := time.Now()
	c, err := b.client.CreateContainer(ctx, &runtimeapi.CreateContainerRequest{PodSandboxId: in.sandbox, SandboxConfig: sandbox, Config: cfg})
	if err != nil {
		return nil, 0, fmt.Errorf("CreateContainer: %w", err)
	}
	p.container = c.GetContainerId()
	if _, err := b.client.StartContainer(ctx, &runtimeapi.StartContainerRequest{ContainerId: p.container}); err != nil {
		return nil, 0, fmt.Errorf("StartContainer: %w", err)
	}
	err = firstLine(ctx, p.log)
	return p, time.Since(t), err
}

// firstLine waits until something is in a file.
func firstLine(ctx context.Context, path string) error {
	return eventually(ctx, 100*time.Microsecond, "a line in "+path, func() (bool, error) {
		st, err := os.Stat(path)
		return err == nil && st.Size() > 0, nil
	})
}

// startOnce starts a container, and removes it.
func startOnce(ctx context.Context, b *bench, in *pod, w *way) (time.Duration, error) {
	p, took, err := startIn(ctx, b, in, w)
	if err != nil {
		return 0, err
	}
	if _, err := b.client.StopContainer(ctx, &runtimeapi.StopContainerRequest{ContainerId: p.container}); err != nil {
		return 0, fmt.Errorf("StopContainer: %w", err)
	}
	if _, err := b.client.RemoveContainer(ctx, &runtimeapi.RemoveContainerRequest{ContainerId: p.container}); err != nil {
		return 0, fmt.Errorf("RemoveContainer: %w", err)
	}
	return took, nil
}

// manyModules starts many of one module and measures the memory of each.
func manyModules(ctx context.Context, b *bench, w *way) error {
	pods := make([]*pod, instances/instancesEach)
	for i := range pods {
		var err error
		if pods[i], err = waitingPod(ctx, b); err != nil {
			return err
		}
	}
	t := time.Now()
	err := b.each(ctx, instances, func(ctx context.Context, i int) error {
		_, _, err := startIn(ctx, b, pods[i%len(pods)], w)
		return err
	})
	if err != nil {
		return fmt.Errorf("%d modules: %w", instances, err)
	}
	b.value("", fmt.Sprintf("%d modules, %d workers", instances, b.workers), instances/time.Since(t).Seconds(), "started each second, all of which run")
	running := 0
	pss := sum(machine.Memory(func(name, args string) bool {
		is := name == "longshore-wasm" && strings.HasSuffix(args, "\x00run\x00")
		if is {
			running++
		}
		return is
	}))
	if running != instances {
		return fmt.Errorf("%d of %d modules run", running, instances)
	}
	b.value("", "PSS of each", float64(pss)/1024/instances, "KB (at most %d)", instanceKB)
	for _, p := range pods {
		if err := b.down(ctx, p); err != nil {
			return err
		}
	}
	return nil
}

// byCrun runs the same program by crun alone.
func byCrun(ctx context.Context, b *bench) error {
	crun, err := exec.LookPath("crun")
	if err != nil {
		fmt.Printf("%-28s not installed\n", "crun")
		return nil
	}
	r, err := b.newBareRig(ctx)
	if err != nil {
		return err
	}
	defer r.close()
	bundle := filepath.Join(r.dir, "bundle")
	if err := os.WriteFile(filepath.Join(bundle, "rootfs", "bin", "ready"), server.ReadyProgram(), 0o755); err != nil {
		return err
	}
	c := command{rig: r, program: crun, root: filepath.Join(r.dir, "crun")}
	if err := c.write("ready", "/bin/ready"); err != nil {
		return err
	}
	var took []time.Duration
	for i := range warmUp + b.pods {
		id := fmt.Sprintf("ready-%d", i)
		out, err := os.Create(filepath.Join(r.dir, id))
		if err != nil {
			return err
		}
		cmd := exec.CommandContext(ctx, crun, "--root", c.root, "run", "--detach", "--bundle", bundle, id)
		cmd.Stdout = out
		t := time.Now()
		err = cmd.Run()
		_ = out.Close()
		if err == nil {
			err = firstLine(ctx, out.Name())
		}
		if err != nil {
			return fmt.Errorf("crun run: %w", err)
		}
		if i >= warmUp {
			took = append(took, time.Since(t))
		}
		if err := c.do(ctx, "delete", "--force", id); err != nil {
			return err
		}
	}
	b.row("", "crun: to its first line", took)
	return nil
}

// readyModule is the same program as a module: (fd_write 1 "ready\n"), then (poll_oneoff) of an hour for ever.
func readyModule() []byte {
	section := func(id byte, body string) string { return string([]byte{id, byte(len(body))}) + body }
	const wasi = "\x16wasi_snapshot_preview1"
	memory := make([]byte, 112)
	binary.LittleEndian.PutUint32(memory, 16) // the vector of fd_write
	binary.LittleEndian.PutUint32(memory[4:], 6)
	copy(memory[16:], "ready\n")
	binary.LittleEndian.PutUint32(memory[64+16:], 1) // the subscription of poll_oneoff: the monotonic clock
	binary.LittleEndian.PutUint64(memory[64+24:], uint64(time.Hour))
	return []byte("\x00asm\x01\x00\x00\x00" +
		section(1, "\x02\x60\x04\x7f\x7f\x7f\x7f\x01\x7f\x60\x00\x00") +
		section(2, "\x02"+wasi+"\x08fd_write\x00\x00"+wasi+"\x0bpoll_oneoff\x00\x00") +
		section(3, "\x01\x01") + section(5, "\x01\x00\x01") +
		section(7, "\x02\x06_start\x00\x02\x06memory\x02\x00") +
		section(10, "\x01\x1f\x00\x41\x01\x41\x00\x41\x01\x41\x08\x10\x00\x1a\x03\x40\x41\xc0\x00\x41\x80\x01\x41\x01\x41\x08\x10\x01\x1a\x0c\x00\x0b\x0b") +
		section(11, "\x01\x00\x41\x00\x0b"+string([]byte{byte(len(memory))})+string(memory)))
}
