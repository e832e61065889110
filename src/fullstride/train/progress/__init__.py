"""What a run tells while it goes on. Start reading at recorder.py.

    recorder.py         rows of metrics, and what the run runs on
    clock.py            where the time goes
    layer_norms.py      the norm of the gradient in each layer
    bar.py              a bar on a terminal, a line a row elsewhere; forecast.py has the time left
    terminal.py         where text for people goes
"""
