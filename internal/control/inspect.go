package control

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"net/netip"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"github.com/containerd/errdefs"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/core"
)

// hidden replaces values that are not shown.
const hidden = "<hidden>"

// Inspect returns a container or, when no container has the name, a sandbox.
func (s *containerServer) Inspect(ctx context.Context, req *longshorev1.InspectRequest) (*longshorev1.InspectResponse, error) {
	showEnv := req.GetShowEnv() && !onReadSocket(ctx)
	c, err := s.srv.container(ctx, req.GetName())
	if err == nil {
		return s.srv.inspectContainer(ctx, c, showEnv)
	}
	if !errdefs.IsNotFound(err) {
		return nil, err
	}
	sb, serr := s.srv.sandbox(ctx, req.GetName())
	if errdefs.IsNotFound(serr) {
		return nil, fmt.Errorf("find a container or sandbox %q: %w", req.GetName(), errdefs.ErrNotFound)
	}
	if serr != nil {
		return nil, serr
	}
	out, err := inspectJSON(sb, nil, showEnv)
	if err != nil {
		return nil, err
	}
	return &longshorev1.InspectResponse{Kind: "sandbox", Json: out}, nil
}

// inspectContainer returns the record of a container, with its spec, the name of its image, and its
// network, which are recorded elsewhere.
func (s *Server) inspectContainer(ctx context.Context, c core.Container, showEnv bool) (*longshorev1.InspectResponse, error) {
	rec := recordOf(c)
	extra := map[string]any{"image_name": rec.Image, "auto_remove": rec.AutoRemove, "privileged": rec.Privileged}
	if s.o.Restricted != nil && s.o.Restricted() {
		c.Health = withoutOutput(c.Health)
	}
	extra["health_status"], extra["health_check"] = healthDocument(c), checkDocument(c)
	if sb, err := s.all.Sandbox(ctx, c.Sandbox); err == nil {
		extra["network"] = networkOf(sb)
	}
	extra["name"] = c.Name()
	if rec.Image == "" && c.Config.Shown.Image != "" {
		extra["image_name"] = c.Config.Shown.Image
	} else if rec.Image == "" && c.Image != "" {
		names, err := s.imageNames(ctx)
		if err != nil {
			return nil, err
		}
		extra["image_name"] = names[c.Image]
	}
	if c.Bundle != "" {
		spec, err := os.ReadFile(filepath.Join(c.Bundle, "config.json"))
		switch {
		case err == nil && json.Valid(spec):
			extra["spec"] = json.RawMessage(spec)
		case err != nil && !errors.Is(err, os.ErrNotExist):
			return nil, fmt.Errorf("inspect %s: %w", c.ID.Short(), err)
		}
	}
	out, err := inspectJSON(c, extra, showEnv)
	if err != nil {
		return nil, err
	}
	return &longshorev1.InspectResponse{Kind: "container", Json: out}, nil
}

// networkOf returns the network of a sandbox as inspect shows it. A stopped one has given its
// addresses and ports back.
func networkOf(sb core.Sandbox) map[string]any {
	n := map[string]any{
		"mode": sb.Network.Mode, "name": sb.Config.Network.Name, "hostname": sb.Config.Hostname, "config_ports": sb.Config.Network.Ports,
		"namespace": sb.Config.Namespaces.Net.Path,
	}
	n["networks"], n["names"] = endsOf(sb), networkNames(sb)
	if sb.State == core.SandboxReady {
		n["addrs"], n["gateways"], n["interfaces"], n["ports"] = sb.Network.Addrs, sb.Network.Gateways, sb.Network.Interfaces, sb.Network.Ports
	}
	return n
}

// endsOf returns each network that a sandbox is on, as inspect shows it.
func endsOf(sb core.Sandbox) []map[string]any {
	var list []map[string]any
	for _, a := range sb.Config.Network.Attached() {
		if sb.Config.Namespaces.Net.Mode != core.Shared {
			break
		}
		name := networkName(a.Network)
		end := map[string]any{"name": name, "aliases": a.Names}
		if i := sb.Network.On(name); i >= 0 && sb.State == core.SandboxReady {
			iface := sb.Network.Interfaces[i]
			end["interface"], end["mac"], end["addrs"] = iface.Interface, iface.MAC, iface.Addrs
			var via []netip.Addr
			for _, g := range sb.Network.Gateways {
				if slices.ContainsFunc(iface.Addrs, func(p netip.Prefix) bool { return p.Contains(g) }) {
					via = append(via, g)
				}
			}
			end["gateways"] = via
		}
		list = append(list, end)
	}
	return list
}

// inspectJSON returns v as JSON, with extra's members added. Unless showEnv is set it hides the
// values of environment variables, and the face's private record, which may contain them too.
func inspectJSON(v any, extra map[string]any, showEnv bool) ([]byte, error) {
	raw, err := marshal(v)
	if err != nil {
		return nil, err
	}
	if len(extra) > 0 {
		add, err := marshal(extra)
		if err != nil {
			return nil, err
		}
		// Both are objects and become one; the record's members keep their order.
		raw = append(append(raw[:len(raw)-1], ','), add[1:]...)
	}
	if !showEnv {
		if raw, err = maskJSON(raw); err != nil {
			return nil, err
		}
	}
	var out bytes.Buffer
	if err := json.Indent(&out, raw, "", "  "); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	return out.Bytes(), nil
}

// maskJSON hides possible secrets at any depth: values in lists of environment variables, and
// members named data.
func maskJSON(raw []byte) ([]byte, error) {
	dec := json.NewDecoder(bytes.NewReader(raw))
	dec.UseNumber()
	var v any
	if err := dec.Decode(&v); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	mask(v)
	return marshal(v)
}

// marshal is json.Marshal without escaping of <, > and &.
func marshal(v any) ([]byte, error) {
	var out bytes.Buffer
	enc := json.NewEncoder(&out)
	enc.SetEscapeHTML(false)
	if err := enc.Encode(v); err != nil {
		return nil, fmt.Errorf("inspect: %w", err)
	}
	return bytes.TrimSuffix(out.Bytes(), []byte{'\n'}), nil
}

func mask(v any) {
	switch v := v.(type) {
	case []any:
		for _, e := range v {
			mask(e)
		}
	case map[string]any:
		for k, e := range v {
			switch list, isList := e.([]any); {
			case isList && strings.EqualFold(k, "env"):
				maskEnv(list)
			case k == "data":
				v[k] = hidden
			default:
				mask(e)
			}
		}
	}
}

func maskEnv(list []any) {
	for i, e := range list {
		text, ok := e.(string)
		if !ok {
			list[i] = hidden
			continue
		}
		if name, _, ok := strings.Cut(text, "="); ok {
			list[i] = name + "=" + hidden
		}
	}
}
