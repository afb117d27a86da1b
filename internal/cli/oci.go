package cli

import (
	"github.com/spf13/cobra"

	"github.com/longshore/longshore/internal/ocicli"
)

func newOCI(a *app) *cobra.Command {
	return &cobra.Command{
		Use:                "oci [OPTION...] COMMAND ...",
		Short:              "The native runtime as an OCI command line, for Docker, Podman and containerd; needs no agent",
		DisableFlagParsing: true, // its options are runc's
		RunE: func(cmd *cobra.Command, args []string) error {
			if status := ocicli.Main(cmd.Context(), ocicli.Options{Args: args, Version: a.o.Version, Stdout: a.o.Stdout, Stderr: a.o.Stderr}); status != 0 {
				return &exitError{status: status}
			}
			return nil
		},
	}
}
