here = True
