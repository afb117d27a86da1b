package cli

import (
	"context"
	"slices"
	"strings"

	"github.com/spf13/cobra"

	longshorev1 "github.com/longshore/longshore/api/longshore/v1"
	"github.com/longshore/longshore/internal/cli/base"
)

// completion returns the possible values of an argument.
type completion = func(*cobra.Command, []string, string) ([]string, cobra.ShellCompDirective)

// names completes up to most arguments (0: any number) with the result of list, and with nothing
// when the agent does not answer.
func (a *app) names(most int, list func(context.Context, *base.Client) ([]string, error)) completion {
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if most > 0 && len(args) >= most {
			return nil, cobra.ShellCompDirectiveDefault
		}
		ctx, cancel := context.WithTimeout(cmd.Context(), base.CompleteTime)
		defer cancel()
		var found []string
		err := a.Call(func(c *base.Client) (err error) {
			found, err = list(ctx, c)
			return err
		})
		if err != nil {
			return nil, cobra.ShellCompDirectiveNoFileComp
		}
		return slices.DeleteFunc(found, func(s string) bool {
			return !strings.HasPrefix(s, begun) || slices.Contains(args, s)
		}), cobra.ShellCompDirectiveNoFileComp
	}
}

// onNetwork completes a network, and then the container that it is about.
func (a *app) onNetwork(containers func(context.Context, *base.Client) ([]string, error)) completion {
	network, container := a.names(1, networkNames), a.names(2, containers)
	return func(cmd *cobra.Command, args []string, begun string) ([]string, cobra.ShellCompDirective) {
		if len(args) == 0 {
			return network(cmd, args, begun)
		}
		return container(cmd, args, begun)
	}
}

// containerNames returns the names of the containers in one of the states, or of all without
// states.
func containerNames(states ...string) func(context.Context, *base.Client) ([]string, error) {
	return func(ctx context.Context, c *base.Client) ([]string, error) {
		resp, err := c.Containers.ListContainers(ctx, &longshorev1.ListContainersRequest{All: true})
		var out []string
		for _, ct := range resp.GetContainers() {
			if len(states) == 0 || slices.Contains(states, ct.GetState()) {
				out = append(out, ct.GetName())
			}
		}
		return out, err
	}
}

func imageNames(ctx context.Context, c *base.Client) ([]string, error) {
	resp, err := c.Images.ListImages(ctx, &longshorev1.ListImagesRequest{Owner: "cli"})
	var out []string
	for _, img := range resp.GetImages() {
		out = append(out, img.GetNames()...)
	}
	return out, err
}

func volumeNames(ctx context.Context, c *base.Client) ([]string, error) {
	resp, err := c.Volumes.ListVolumes(ctx, &longshorev1.ListVolumesRequest{Owner: "cli"})
	var out []string
	for _, v := range resp.GetVolumes() {
		out = append(out, v.GetName())
	}
	return out, err
}

func networkNames(ctx context.Context, c *base.Client) ([]string, error) {
	resp, err := c.Networks.ListNetworks(ctx, &longshorev1.ListNetworksRequest{})
	var out []string
	for _, n := range resp.GetNetworks() {
		out = append(out, n.GetName())
	}
	return out, err
}

// complete sets the argument completions of all commands.
func (a *app) complete(root *cobra.Command) {
	running := containerNames("running", "paused", "asleep")
	all := map[string]completion{
		"run": a.names(1, imageNames), "exec": a.names(1, running), "attach": a.names(1, running), "top": a.names(1, running), "port": a.names(1, running),
		"logs": a.names(0, containerNames()), "inspect": a.names(0, containerNames()), "why": a.names(1, containerNames()),
		"start": a.names(0, containerNames("created", "exited")), "stop": a.names(0, running), "kill": a.names(0, running),
		"pause": a.names(0, containerNames("running")), "resume": a.names(0, containerNames("paused")), "rm": a.names(0, containerNames()),
		"sleep": a.names(0, containerNames("running")), "wake": a.names(0, containerNames("asleep")), "checkpoint": a.names(0, containerNames("running", "paused")), "restore": a.names(1, containerNames("exited")),
		"wait": a.names(0, containerNames()), "unit": a.names(1, containerNames()), "stats": a.names(0, running), "tag": a.names(1, imageNames), "rmi": a.names(0, imageNames),
		"export": a.names(0, imageNames), "volume rm": a.names(0, volumeNames), "volume inspect": a.names(0, volumeNames), "network rm": a.names(0, networkNames), "network inspect": a.names(0, networkNames), "history": a.names(1, imageNames), "push": a.names(1, imageNames),
		"diff": a.names(1, containerNames()), "commit": a.names(1, containerNames()), "restart": a.names(0, containerNames()), "create": a.names(1, imageNames),
		"network connect": a.onNetwork(running), "network disconnect": a.onNetwork(running), "rename": a.names(1, containerNames()), "update": a.names(0, containerNames()),
	}
	images := map[string]completion{"inspect": a.names(0, imageNames), "rm": a.names(0, imageNames)}
	for _, cmd := range root.Commands() {
		cmd.ValidArgsFunction = all[cmd.Name()]
		for _, sub := range cmd.Commands() {
			switch cmd.Name() {
			case "container":
				sub.ValidArgsFunction = all[sub.Name()]
			case "image":
				if sub.ValidArgsFunction = images[sub.Name()]; sub.ValidArgsFunction == nil {
					sub.ValidArgsFunction = all[sub.Name()]
				}
			default:
				sub.ValidArgsFunction = all[cmd.Name()+" "+sub.Name()]
			}
		}
	}
}
