package docker

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"strconv"
	"strings"
	"syscall"

	"github.com/containerd/errdefs"

	"github.com/longshore/longshore/internal/core"
	"github.com/longshore/longshore/internal/dockerhttp"
	"github.com/longshore/longshore/internal/dockertypes"
	"github.com/longshore/longshore/internal/engine"
	"github.com/longshore/longshore/internal/engine/asleep"
	"github.com/longshore/longshore/internal/face/docker/translate"
	"github.com/longshore/longshore/internal/invalid"
	"github.com/longshore/longshore/internal/ocispec"
	"github.com/longshore/longshore/internal/solo"
	stranslate "github.com/longshore/longshore/internal/solo/translate"
)

// verbs has the operations that change a container.
type verbs struct{ f *Face }

// largestEmptyBody is the size of a start request's body that dockerd takes for none, such as null or {}.
const largestEmptyBody = 7

func (v verbs) start(w http.ResponseWriter, r *dockerhttp.Request) error {
	if r.ContentLength > largestEmptyBody || r.ContentLength == -1 {
		return invalid.Errorf("starting container with non-empty request body was deprecated since API v1.22 and removed in v1.24")
	}
	ctx := context.WithoutCancel(r.Context()) // a client that leaves does not undo half of it
	c, err := v.f.find(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	switch {
	case c.State == core.ContainerPaused:
		return errdefs.ErrFailedPrecondition.WithMessage("cannot start a paused container, try unpause instead")
	case c.State.Runs() || c.Restarting():
		return dockerhttp.ErrNotModified
	}
	if err := v.f.solo.Start(ctx, c); err != nil {
		switch now, ferr := v.f.own.Container(ctx, c.ID); {
		case ferr == nil && now.State.Runs():
			return dockerhttp.ErrNotModified // another call has started it
		case errdefs.IsNotFound(ferr) || ferr == nil && now.Removing:
			return errdefs.ErrFailedPrecondition.WithMessage("container is marked for removal and cannot be started")
		}
		v.f.solo.DropIfAuto(ctx, c)
		return startError(err, notCreated)
	}
	return dockerhttp.Reply(w, http.StatusNoContent, nil)
}

// startError gives the error of a program that cannot be executed the words that docker's command line makes exit codes of.
func startError(err error, prefix string) error {
	if port := portTaken(err); port != nil {
		return port
	}
	var refused *core.StartError
	if !errors.As(err, &refused) {
		return err
	}
	text := strings.Replace(refused.Error(), "exec \"", "exec: \"", 1)
	switch core.StartStatus(err) {
	case 127:
		if !strings.Contains(text, "no such file or directory") && !strings.Contains(text, "executable file not found") {
			text += ": executable file not found in $PATH"
		}
	case 126:
		if !strings.Contains(text, "permission denied") && !strings.Contains(text, "is a directory") {
			text += ": permission denied"
		}
	}
	return invalid.Errorf("%s%s", prefix, text)
}

// notCreated begins dockerd's error for a program that cannot be executed.
const notCreated = "failed to create task for container: failed to create shim task: OCI runtime create failed: runc create failed: unable to start container process: error during container init: "

// stopOptions reads the signal and the seconds of a stop or restart.
func stopOptions(r *dockerhttp.Request, call string) (engine.StopOptions, error) {
	opts := engine.StopOptions{Request: stopRequest(call)}
	if s := r.Get("signal"); s != "" && !r.API.Before("1.42") {
		if _, err := ocispec.Signal(s); err != nil {
			return opts, fmt.Errorf("cannot stop container: %s: invalid signal: %s", r.Vars["id"], s) // dockerd's status is 500, too
		}
		opts.Signal = s
	}
	if t := r.Get("t"); t != "" {
		n, err := strconv.Atoi(t)
		if err != nil {
			return opts, invalid.Errorf("strconv.Atoi: parsing %q: invalid syntax", t)
		}
		grace := translate.Grace(n)
		opts.Grace = &grace
	}
	return opts, nil
}

func (v verbs) stop(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := context.WithoutCancel(r.Context()) // a client that leaves does not undo half of it
	opts, err := stopOptions(r, "stop")
	if err != nil {
		return err
	}
	c, eng, err := others(v).managed(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	restarting := c.Restarting()
	if !c.State.Live() && !restarting {
		return dockerhttp.ErrNotModified
	}
	if !restarting {
		v.f.killed(c, signalOf(c, opts.Signal))
	}
	if err := eng.StopContainer(ctx, c.ID, opts); err != nil {
		return err
	}
	v.f.publish(c, "stop", nil)
	return dockerhttp.Reply(w, http.StatusNoContent, nil)
}

// signalOf returns the number of the signal that stops a container.
func signalOf(c core.Container, asked string) int {
	for _, s := range []string{asked, c.Config.Stop.Signal} {
		if n, err := ocispec.Signal(s); s != "" && err == nil {
			return n
		}
	}
	return int(syscall.SIGTERM)
}

func (v verbs) restart(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := context.WithoutCancel(r.Context()) // a client that leaves does not undo half of it
	opts, err := stopOptions(r, "restart")
	if err != nil {
		return err
	}
	c, _, err := others(v).managed(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	if c.State.Live() {
		v.f.killed(c, signalOf(c, opts.Signal))
	}
	restart := v.f.solo.Restart
	if c.Owner != core.OwnerDocker {
		restart = others(v).restart
	}
	if err := restart(ctx, c, opts); err != nil {
		return startError(err, notCreated)
	}
	v.f.publish(c, "restart", nil)
	return dockerhttp.Reply(w, http.StatusNoContent, nil)
}

func (v verbs) kill(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := context.WithoutCancel(r.Context())
	signal := int(syscall.SIGKILL)
	if text := r.Get("signal"); text != "" {
		var err error
		if signal, err = ocispec.Signal(text); err != nil {
			if n, nerr := strconv.Atoi(text); nerr == nil && n != 0 {
				return invalid.Errorf("cannot kill container: %s: the linux daemon does not support signal %s", r.Vars["id"], text)
			}
			return invalid.Errorf("cannot kill container: %s: invalid signal: %s", r.Vars["id"], text)
		}
	}
	c, eng, err := others(v).managed(ctx, r.Vars["id"])
	if errdefs.IsNotFound(err) {
		return errdefs.ErrNotFound.WithMessage(fmt.Sprintf("cannot kill container: %s: %s", r.Vars["id"], dockerhttp.Text(err)))
	}
	if err != nil {
		return err
	}
	if !c.State.Live() {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("cannot kill container: %s: container %s is not running", r.Vars["id"], c.ID))
	}
	v.f.killed(c, signal)
	ask := stopRequest("kill")
	ask.Signal = signal
	waiting, stop := context.WithCancel(r.Context())
	defer stop()
	wait := func(context.Context) (core.Autopsy, error) { return core.Autopsy{}, nil }
	if signal == int(syscall.SIGKILL) {
		wait = eng.JoinWait(core.Ref{Container: c.ID})
	}
	err = eng.Signal(ctx, core.Ref{Container: c.ID}, signal, ask)
	if errdefs.IsNotFound(err) {
		err = nil
	}
	if err != nil {
		stop() // wait must be called, and returns at once
	}
	if _, werr := wait(waiting); err == nil && werr != nil && r.Context().Err() != nil {
		err = werr
	}
	if err != nil {
		return err
	}
	return dockerhttp.Reply(w, http.StatusNoContent, nil)
}

func (v verbs) pause(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := context.WithoutCancel(r.Context())
	c, err := v.f.find(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	switch c.State {
	case core.ContainerPaused:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("Container %s is already paused", c.ID))
	case core.ContainerRunning:
	case core.ContainerAsleep: // its processes wait for the pause's end in the same way
		if err := v.f.own.Rests.Wake(ctx, c.ID, asleep.ByPause); err != nil {
			return err
		}
	default:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s is not running", c.ID))
	}
	if err := v.f.own.PauseContainer(ctx, c.ID); err != nil {
		return err
	}
	return dockerhttp.Reply(w, http.StatusNoContent, nil)
}

func (v verbs) unpause(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := context.WithoutCancel(r.Context())
	c, err := v.f.find(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	if c.State != core.ContainerPaused {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("Container %s is not paused", c.ID))
	}
	if err := v.f.own.ResumeContainer(ctx, c.ID); err != nil {
		return err
	}
	return dockerhttp.Reply(w, http.StatusNoContent, nil)
}

func (v verbs) rename(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := context.WithoutCancel(r.Context())
	c, err := v.f.find(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	name := strings.TrimPrefix(r.Get("name"), "/")
	switch {
	case name == "":
		return invalid.Errorf("Neither old nor new names may be empty")
	case name == string(c.Key):
		return invalid.Errorf("Renaming a container with the same name as its current name")
	case !stranslate.ValidName(name):
		return invalid.Errorf("Error when allocating new name: Invalid container name (/%s), only [a-zA-Z0-9][a-zA-Z0-9_.-] are allowed", name)
	}
	if err := v.f.solo.Rename(ctx, c, name); err != nil {
		if err = v.f.conflict(ctx, err); errdefs.IsAlreadyExists(err) {
			return errdefs.ErrAlreadyExists.WithMessage("Error when allocating new name: " + dockerhttp.Text(err))
		}
		return err
	}
	v.f.publish(c, "rename", map[string]string{"oldName": "/" + string(c.Key)})
	return dockerhttp.Reply(w, http.StatusNoContent, nil)
}

func (v verbs) resize(w http.ResponseWriter, r *dockerhttp.Request) error {
	size, err := sizeOf(r)
	if err != nil {
		return err
	}
	c, err := v.f.find(r.Context(), r.Vars["id"])
	if err != nil {
		return err
	}
	if !c.State.Runs() {
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("container %s is not running", c.ID))
	}
	if c.Main.TTY { // dockerd accepts a size for programs without a terminal
		if err := v.f.own.Resize(r.Context(), core.Ref{Container: c.ID}, size); err != nil {
			return err
		}
	}
	v.f.publish(c, "resize", map[string]string{"height": r.Get("h"), "width": r.Get("w")})
	return dockerhttp.Reply(w, http.StatusOK, nil)
}

// sizeOf reads the size of a terminal.
func sizeOf(r *dockerhttp.Request) (core.Size, error) {
	h, err := strconv.ParseUint(r.Get("h"), 10, 32)
	if err != nil {
		return core.Size{}, invalid.Errorf("invalid resize height %q: %v", r.Get("h"), errors.Unwrap(err))
	}
	w, err := strconv.ParseUint(r.Get("w"), 10, 32)
	if err != nil {
		return core.Size{}, invalid.Errorf("invalid resize width %q: %v", r.Get("w"), errors.Unwrap(err))
	}
	return core.Size{Rows: uint16(min(h, 0xffff)), Cols: uint16(min(w, 0xffff))}, nil
}

func (v verbs) remove(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := context.WithoutCancel(r.Context()) // a client that leaves does not undo half of it
	c, err := v.f.find(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	force := r.Bool("force")
	running := c.State.Live()
	switch {
	case r.Bool("link"):
		return invalid.Errorf("links are removed with their containers: remove the container without link")
	case c.Removing:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("removal of container %s is already in progress", r.Vars["id"]))
	case !force && c.State == core.ContainerPaused:
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("cannot remove container %q: container is paused and must be unpaused first", r.Vars["id"]))
	case !force && (running || c.Restarting()):
		return errdefs.ErrFailedPrecondition.WithMessage(fmt.Sprintf("cannot remove container %q: container is running: stop the container before removing or force remove", r.Vars["id"]))
	}
	if running {
		v.f.killed(c, int(syscall.SIGKILL))
	}
	opts := solo.Removal{RemoveOptions: engine.RemoveOptions{Force: force, Request: stopRequest("rm")}, Volumes: r.Bool("v")}
	if err := v.f.solo.Remove(ctx, c, opts); err != nil {
		return err
	}
	return dockerhttp.Reply(w, http.StatusNoContent, nil)
}

// updated is the answer to an update.
type updated struct{ Warnings []string }

func (v verbs) update(w http.ResponseWriter, r *dockerhttp.Request) error {
	ctx := context.WithoutCancel(r.Context())
	var body struct {
		dockertypes.Resources
		RestartPolicy dockertypes.RestartPolicy
	}
	if err := r.Decode(&body); err != nil {
		return err
	}
	c, err := v.f.find(ctx, r.Vars["id"])
	if err != nil {
		return err
	}
	if r.API.Before("1.40") {
		body.PidsLimit = nil
	}
	req, err := translate.Update(&body.Resources, body.RestartPolicy)
	if err != nil {
		return err
	}
	if body.RestartPolicy.Name != "" && body.RestartPolicy.Name != "no" && solo.RecordOf(c).AutoRemove {
		return errdefs.ErrFailedPrecondition.WithMessage("Restart policy cannot be updated because AutoRemove is enabled for the container")
	}
	if err := v.f.solo.Update(ctx, c, req); err != nil {
		if errdefs.IsInvalidArgument(err) || errdefs.IsFailedPrecondition(err) {
			err = invalid.Errorf("%s", dockerhttp.Text(err))
		}
		return err
	}
	if err := v.f.change(ctx, c.ID, func(now *translate.Create) { now.Update(&body.Resources, body.RestartPolicy) }); err != nil {
		return err
	}
	v.f.publish(c, "update", nil)
	return dockerhttp.Reply(w, http.StatusOK, updated{})
}
