/* SPDX-License-Identifier: Apache-2.0 */
#include "base/arg.h"
#include "base/progress_line.h"
#include "kumi/run.h"
#include "plan/picture.h"
#include "plan/ranks/map.h"
#include "train/configure.h"

int kumi_plan_mesh_picture(const struct kumi_settings *settings, const char *hosts,
                           const char *hostfile, int n_ranks, const char *path)
{
    struct ku_compile_line line;
    struct ku_rank_map map;
    struct ku_plan plan;
    KU_TRY(ku_settings_check(settings));
    KU_GIVEN(path, "path");
    KU_TRY(ku_picture_check(path));
    KU_TRY(ku_plan_open_at(&plan, settings, hosts, hostfile, n_ranks));
    plan.s.watch = ku_compile_line_start(&line);
    int status = ku_rank_map_init(&map, &plan);
    ku_compile_line_end(&line);
    if (status == KUMI_OK) {
        status = ku_rank_map_draw(&map, settings->config, path);
        ku_rank_map_fini(&map);
    }
    ku_plan_fini(&plan);
    return status;
}
