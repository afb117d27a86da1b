package cli

import (
	"context"
	"fmt"
	"strings"

	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/cli/base"
	"github.com/longshore/longshore/internal/cli/node"
	"github.com/longshore/longshore/internal/cli/service"
)

func newSystem(a *app) *cobra.Command {
	return base.GroupOf("system", "Manage the whole node", node.NewSystemDf(a.App), newSystemPrune(a), node.NewInfo(a.App), newEvents(a), service.NewGenerator(a.App))
}

func newSystemPrune(a *app) *cobra.Command {
	var force bool
	p := pruning{containers: true, images: true}
	cmd := &cobra.Command{
		Use:   "prune",
		Short: "Remove ended containers, unused images and, when asked, unused volumes",
		Long:  "Remove unused objects of owner cli: ended containers, and images without a name or, with --all, all images that no container uses.",
		Args:  base.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := p.parse(); err != nil {
				return err
			}
			if err := confirm(a, force, "This removes all containers of owner cli that have ended, and images that nothing uses."); err != nil {
				return err
			}
			return a.Call(func(c *base.Client) error { return a.prune(cmd, c, p) })
		},
	}
	cmd.Flags().BoolVarP(&p.all, "all", "a", false, "every image that no container uses")
	cmd.Flags().BoolVar(&p.volumes, "volumes", false, "also anonymous volumes that no container uses")
	cmd.Flags().BoolVarP(&force, "force", "f", false, "do not ask")
	p.define(cmd)
	return cmd
}

// confirm asks for confirmation on a terminal, unless force is set. Without a terminal it does not ask.
func confirm(a *app, force bool, question string) error {
	_, onTerminal := base.Terminal(a.Stdin)
	if force || !onTerminal {
		return nil
	}
	if err := a.Print("%s Continue? [y/N] ", question); err != nil {
		return err
	}
	var answer string
	_, _ = fmt.Fscanln(a.Stdin, &answer) // an empty line means no
	if a := strings.ToLower(answer); a != "y" && a != "yes" {
		return &base.ExitError{Status: 1, Err: context.Canceled}
	}
	return nil
}
